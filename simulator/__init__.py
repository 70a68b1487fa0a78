"""Seeded scenarios with known answers: stock prices, RFID readings, highway tolls, logins, and delivery faults.

All random values come from `numpy.random.Generator(PCG64(seed))`: the same seed and arguments give the same bytes.
Times are event times. Nothing reads a clock: the caller plays a scenario at some rate.
"""
