"""The router with the operations of both protocols."""

from ninja import Router

from . import anthropic_api, openai_api

router = Router()
router.add_router("", anthropic_api.router)
router.add_router("", openai_api.router)
