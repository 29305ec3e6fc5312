"""A wrong clock for one process, where the library for it is installed."""

import pytest

from faultline.drills.kinds.guests import no_fake_clock, off_by

__all__ = ["needs_a_wrong_clock", "off_by"]
needs_a_wrong_clock = pytest.mark.skipif(no_fake_clock() is not None, reason=str(no_fake_clock()))
