"""Static files under hashed names, compressed, imports of modules included."""

from whitenoise.storage import CompressedManifestStaticFilesStorage


class LoomStaticStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    support_js_module_import_aggregation = True
