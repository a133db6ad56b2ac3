"""The transport between simulated ranks, which are threads of one process."""
