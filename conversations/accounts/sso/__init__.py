"""Sign-in by an OpenID Connect provider, and by two factors: the part that needs
django-allauth, and that is loaded only where a setting asks for it.

Pages, limits and whose account it is stay ours; allauth keeps the steps of a sign-in
and the second factors. What it leaves out and OpenID Connect asks for (the signature,
the nonce, whose userinfo it is) is in ``oidc``.
"""
