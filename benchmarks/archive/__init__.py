"""What an archive costs: reads and searches."""
