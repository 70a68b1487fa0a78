"""The database: its public methods, checkpoints, recovery, backup and repair."""
