"""An op pack with no operator of its own: it wraps those of all other packs, and names the first node whose output
holds a NaN or an infinity that its inputs do not explain.

The environment says what it does, and is read once, when opgraft loads its packs; see `Settings`.
"""

from .settings import Mode, Settings
from .wrapper import NumericsError, NumericsGuard

guard = NumericsGuard(Settings.from_environment())

__all__ = ["Mode", "NumericsError", "NumericsGuard", "Settings", "guard"]
