"""Demos on one machine, without any server: real prices and flights, a shop with RFID readers, a highway, logins."""
