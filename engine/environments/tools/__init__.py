"""An environment of tools. A tool is one module here, a name in ``engine.spec.Tools`` and a place in
``environment``."""
