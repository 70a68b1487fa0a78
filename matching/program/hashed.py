"""Hashes of values as registers and ranks of a HyperLogLog sketch like DuckDB's (matching.kernels.estimates)."""

from __future__ import annotations

from query.plan.expression import Expression, Opaque

#: Bits of a hash that choose a register, and those in which its rank is found: the place of the first one, from 1 on.
REGISTER_BITS, RANK_BITS = 10, 54
REGISTERS = 1 << REGISTER_BITS
#: More than the largest rank.
RANKS = 64


def register_and_rank(value: Expression) -> Expression:
    """Returns RANKS times the register of a value's hash, plus the rank there; null of null."""
    hash = 'hash("_0")'
    bits = f"(({hash} >> {REGISTER_BITS}) | {1 << RANK_BITS}::UBIGINT)"
    number = f"({hash} & {REGISTERS - 1}) * {RANKS} + bit_count(xor({bits}, {bits} - 1))"
    return Opaque(f'CASE WHEN "_0" IS NOT NULL THEN CAST({number} AS BIGINT) END', (value,), "BIGINT")
