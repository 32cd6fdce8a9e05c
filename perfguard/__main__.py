"""`python -m perfguard` is `perfguard`."""

from __future__ import annotations

import sys

from perfguard.cli import main

sys.exit(main())
