"""Sign-in with an OpenID Connect provider and with two factors.

This package needs django-allauth and is loaded only if a setting asks for it. It has its own
pages and limits, and decides which account a sign-in belongs to. allauth manages the steps of a
sign-in and the second factors. ``oidc`` adds the checks that OpenID Connect requires and allauth
leaves out: the signature, the nonce and the subject of userinfo.
"""
