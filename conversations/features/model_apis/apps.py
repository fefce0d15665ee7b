from django.http import HttpRequest, HttpResponse

from conversations import feature


class ModelApisConfig(feature.Feature):
    name = "conversations.features.model_apis"
    verbose_name = "The APIs of models"

    def format_error(self, request: HttpRequest, response: HttpResponse) -> HttpResponse | None:
        from .errors import as_api_error

        return as_api_error(request, response)
