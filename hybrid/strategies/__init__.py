"""When the archive is asked: strategies decide, the driver acts. Pure functions of a frontier."""
