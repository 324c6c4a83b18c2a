"""dray inside other frameworks. Each module calls public Python only, and imports its framework at first use.

django/    Django's tasks: a backend, `manage.py dray`
fastapi    FastAPI and Starlette: lifespan, dependency, the mounted service
"""
