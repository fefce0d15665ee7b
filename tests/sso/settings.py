"""The tests' settings, with everything in the extra ``sso`` switched on.

The ``provider`` fixture sets the provider's real address.
"""

import os

os.environ["LOOM_TWO_FACTOR"] = "optional"
os.environ["LOOM_OIDC_ISSUER"] = "http://127.0.0.1:9"
os.environ["LOOM_OIDC_CLIENT_ID"] = "loom"
os.environ["LOOM_OIDC_CLIENT_SECRET"] = "a secret of the client"
os.environ["LOOM_OIDC_NAME"] = "Example"

from tests.settings import *  # noqa: F403
