"""Columns of the arrays in which panes are counted (matching.kernels.panes)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Pane(IntEnum):
    """Columns of panes."""

    NUMBER = 0
    BEFORE = 1  # the one before and after it in its partition, NONE: none; AFTER of a free one: the next free one
    AFTER = 2
    WIDTH = 3  # limbs in use
    FULL = 4  # 1: the next event needs one limb more
    ROWS = 5  # bits of the rows that there are, and of those that are not as at the beginning
    CHANGED = 6


class End(IntEnum):
    """Columns of the ends of a block."""

    NUMBER = 0  # of its first pane
    AFTER = 1  # the next shorter one; of a free one, the next free one
    WIDTH = 2
    ALIVE = 3  # bits of the states with a trend in it, or in a shorter one


class PaneKey(IntEnum):
    """Columns of partitions."""

    ACTIVE = 0  # 1: it has panes or ends
    AFTER = 1  # the next active one
    FIRST = 2  # its first and last pane
    LAST = 3
    PENDING = 4  # the first pane that is not in the product
    FRONT = 5  # its longest end
    PRODUCT = 6  # its product
    ROWS = 7  # bits of the rows of the product; 0: no pane is in it
    BEGUN = 8  # bits of the states with trends that began within the product
    KNOWN = 9  # 1: the row of the last window, kept beside the product, is also that of the next one


P_NUMBER, P_BEFORE, P_AFTER, P_WIDTH, P_FULL, P_ROWS, P_CHANGED = map(int, Pane)
E_NUMBER, E_AFTER, E_WIDTH, E_ALIVE = map(int, End)
K_ACTIVE, K_AFTER, K_FIRST, K_LAST, K_PENDING, K_FRONT, K_PRODUCT, K_ROWS, K_BEGUN, K_KNOWN = map(int, PaneKey)


class PaneCounter(IntEnum):
    """Numbers that outlive a call."""

    PANES_USED = 0  # ever used, the first free one, and how many are free; the same for ends and products
    PANES_FREE = 1
    ENDS_USED = 2
    ENDS_FREE = 3
    ENDS_LEFT = 4
    PRODUCTS_USED = 5
    PRODUCTS_FREE = 6
    FIRST = 7  # the first and the last active partition
    LAST = 8
    CLOSED_BEFORE = 9  # windows before this one are closed
    LIVE = 10  # 1: CLOSED_BEFORE has been set
    BEGUN = 11  # 1: window CLOSED_BEFORE is closed for the partitions up to AT
    AT = 12
    OUT = 13  # rows of output
    VALUE_BITS = 14  # of the largest value of a row, for the room above a number


(PANES_USED, PANES_FREE, ENDS_USED, ENDS_FREE, ENDS_LEFT, PRODUCTS_USED, PRODUCTS_FREE, FIRST, LAST, CLOSED_BEFORE,
 LIVE, BEGUN, AT, OUT, VALUE_BITS) = map(int, PaneCounter)  # fmt: skip


class Panes(NamedTuple):
    """panes: int64 (n, len(Pane)); matrices: int64 (n, cells * cells, columns), a record for each row and cell. ends:
    int64 (n, len(End)); vectors: int64 (n, cells, columns), the records of trends in them. keys: int64 (partitions,
    len(PaneKey)). products: int64 (n, cells * cells + 1, columns), those of partitions, with the row of their last
    window; widths: int64 (n, cells), limbs in use of each row. out: int64 (rows, 2 + columns), partition, window and
    record of closed windows with a trend. fresh, touched: room for what an event adds. suffix, made: int64
    (cells * cells, columns), room for two matrices; suffix_widths, made_widths: of their rows."""

    panes: np.ndarray
    matrices: np.ndarray
    ends: np.ndarray
    vectors: np.ndarray
    keys: np.ndarray
    products: np.ndarray
    widths: np.ndarray
    out: np.ndarray
    counters: np.ndarray
    fresh: np.ndarray
    touched: np.ndarray
    suffix: np.ndarray
    suffix_widths: np.ndarray
    made: np.ndarray
    made_widths: np.ndarray


class PaneTimes(NamedTuple):
    """Panes of a slide, 1 or 2; slides of a window, and of a block; the length of the last part of a window."""

    per_slide: int
    whole_slides: int
    block: int
    rest_us: int
