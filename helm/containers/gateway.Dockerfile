# The gateway, the migration and the command line: no torch.
#   docker build -f helm/containers/gateway.Dockerfile -t loraplex-gateway:0.1.0 .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /build
COPY . .
RUN python -m venv /opt/loraplex
RUN /opt/loraplex/bin/pip install --no-cache-dir -c constraints.txt .

FROM ${PYTHON}
COPY --from=build /opt/loraplex /opt/loraplex
ENV PATH=/opt/loraplex/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
CMD ["loraplex", "gateway"]
