"""Sign-in by a provider and by two factors: a run of pytest with settings of its own,
since both are switched on before Django starts (``--ds=tests.sso.settings``)."""
