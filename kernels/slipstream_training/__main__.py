import sys

from slipstream_training.command import main

if __name__ == "__main__":
    sys.exit(main())
