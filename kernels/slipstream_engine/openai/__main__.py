"""See `command`."""

import sys

from slipstream_engine.openai.command import main

sys.exit(main())
