"""The database: its public face, and what keeps it whole."""
