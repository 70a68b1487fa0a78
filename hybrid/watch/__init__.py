"""Live queries and what they need: streams, their flow, chains, backfill, checkpoints, shedding, memory."""
