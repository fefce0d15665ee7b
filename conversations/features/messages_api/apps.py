from django.http import HttpRequest, HttpResponse

from conversations import feature


class MessagesApiConfig(feature.Feature):
    name = "conversations.features.messages_api"
    verbose_name = "The Messages API"

    def format_error(self, request: HttpRequest, response: HttpResponse) -> HttpResponse | None:
        from .errors import ROOT, as_api_error

        return as_api_error(request, response) if request.path.startswith(ROOT) else None
