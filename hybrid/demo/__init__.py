"""Demos that need no server: real prices and flights, a shop with RFID readers, a toll road, logins."""
