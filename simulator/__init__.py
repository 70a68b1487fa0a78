"""Seeded scenarios with planted ground truth: stock prices, RFID readings, highway tolls, and the faults of delivery.

Everything is drawn from `numpy.random.Generator(PCG64(seed))`: the same seed and arguments give the same bytes. Times
are event times; nothing here reads a clock, so playing a scenario at some rate is the business of whoever feeds it.
"""
