"""A plugin for celery's own tests with a real worker: it registers the adapter's names."""

import kvstream.adapters.celery

assert kvstream.adapters.celery.ResultBackend
