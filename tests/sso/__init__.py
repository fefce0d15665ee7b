"""Tests of sign-in by a provider and with two factors.

They need a run of pytest with settings of their own (``--ds=tests.sso.settings``), because both
features are switched on before Django starts.
"""
