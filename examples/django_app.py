"""A Django project in one file, whose views enqueue jobs.

    python django_app.py runserver   serves requests, and enqueues jobs
    kvstream work django_app:jobs    runs them, with Django set up

A job that depends on a row is enqueued once the row is committed: ``transaction.on_commit``.
Workers keep their threads, and Django a connection for each; ``FreshConnections`` closes those that
have become too old, as Django does before and after a request.
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import close_old_connections, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from kvstream import Jobs
from kvstream.jobs import Job, Middleware

DATA = os.environ.get("DATA", "data")

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        ROOT_URLCONF=__name__,
        SECRET_KEY="an example",
    )
    django.setup()


class FreshConnections(Middleware):
    """Close connections to databases that have become too old."""

    def before(self, job: Job) -> None:
        close_old_connections()

    def after(self, job: Job, result: object) -> None:
        close_old_connections()

    def error(self, job: Job, error: BaseException) -> None:
        close_old_connections()


jobs = Jobs(DATA, middleware=[FreshConnections()])


@jobs.task(retries=3)
def welcome(user: str) -> str:
    return f"welcome, {user}"


def register(request: HttpRequest, user: str) -> JsonResponse:
    with transaction.atomic():
        # save the user here
        once = welcome.with_options(unique=f"welcome:{user}")
        transaction.on_commit(lambda: once.enqueue(user))
    return JsonResponse({"registered": user})


urlpatterns = [path("register/<str:user>", register)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
