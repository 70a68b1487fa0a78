"""Makes buckets in the store of the environment, if they are not there; waits up to a minute for the store."""

import os
import sys
import time

from pyarrow import fs

scheme, _, host = os.environ["AWS_ENDPOINT_URL"].partition("://")
store = fs.S3FileSystem(endpoint_override=host, scheme=scheme, allow_bucket_creation=True)
until = time.monotonic() + 60
for name in sys.argv[1:]:
    while True:
        try:
            store.create_dir(name)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(1)
