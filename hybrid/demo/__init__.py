"""Three demos that run on one machine without any server: real prices, a shop with RFID readers, a highway."""
