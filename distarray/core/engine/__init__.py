"""The engine that runs operations: blocks, meshes, operands, rules resolved, the pipeline."""
