"""Static files with a digest in their name."""

from whitenoise.storage import CompressedManifestStaticFilesStorage

IMPORTS = CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1]


class ModuleStaticFilesStorage(CompressedManifestStaticFilesStorage):
    """Imports between the portal's own JavaScript modules name the digest too.

    Only its own: third-party scripts quote imports in their comments, which Django would try to resolve.
    """

    patterns = (*CompressedManifestStaticFilesStorage.patterns, ("js/*.js", IMPORTS))
