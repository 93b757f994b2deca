"""For all tests: drawn examples may take as long as they take. How fast the machine is, and what else it does, fails nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None)
if settings.get_current_profile_name() == "default":  # not where a program or a CI has chosen its own
    settings.load_profile("house")
