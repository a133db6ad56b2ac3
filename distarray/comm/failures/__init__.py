"""Failures: aborts, the watchdog, deadlocks, and who is alive."""
