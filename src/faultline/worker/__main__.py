"""What runs in a child process of a worker: `python -m faultline.worker`, see `child`."""

import sys

from faultline.worker.child import main

sys.exit(main())
