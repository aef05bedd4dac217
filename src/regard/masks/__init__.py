"""The masks: one a file, one a line here."""

from __future__ import annotations

from regard.masks.base import Layout as Layout
from regard.masks.base import Mask as Mask
from regard.masks.base import as_mask as as_mask
from regard.masks.causal import Causal as Causal
from regard.masks.key_padding import KeyPadding as KeyPadding
from regard.masks.not_self import NotSelf as NotSelf
from regard.masks.segments import Segments as Segments
from regard.masks.valid_length import ValidLength as ValidLength
from regard.masks.window import Window as Window

MASKS: dict[str, type[Mask]] = {
    name: found
    for name, found in sorted(globals().items())
    if isinstance(found, type) and issubclass(found, Mask) and found is not Mask
}
