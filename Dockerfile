# bow in a container: docker build -t bow . && docker run --gpus all --init --ipc=host --ulimit memlock=-1 bow train
# docs/docker.md says what each flag is for, and what of this has been run.
#
# CUDA=13, 12 or none selects the build of torch and CuPy. Without CUDA, learners run on CPU cores, using a native runtime
# that is compiled in the build, and again where the image runs on another processor: only this variant has a compiler.
# (compile=True on a GPU needs one for Triton: docker build --build-arg COMPILER=yes.)
#
# The base has the versions of Python and Debian that bow is tested with.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG CUDA=13
WORKDIR /src
RUN python3 -m venv /opt/bow
COPY constraints.txt ./
COPY docker/install.sh docker/
# Least frequently changed first: torch is most of the image. A pip.conf may be mounted as a secret; it is not stored.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf sh docker/install.sh torch "${CUDA}"
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY conf conf
COPY hydra_plugins hydra_plugins
COPY bow bow
RUN --mount=type=secret,id=pip,target=/etc/pip.conf sh docker/install.sh bow "${CUDA}"

FROM ${BASE}
ARG CUDA=13
ARG COMPILER=""
COPY docker/install.sh /tmp/install.sh
RUN sh /tmp/install.sh compiler "${COMPILER:-${CUDA}}" && rm /tmp/install.sh \
    && useradd --create-home --uid 1000 bow \
    && install --directory --owner=bow --group=bow /home/bow /home/bow/runs /home/bow/.cache /home/bow/.cache/bow
COPY --from=build /opt/bow /opt/bow
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/bow-entrypoint
ENV PATH=/opt/bow/bin:${PATH} \
    OMP_WAIT_POLICY=PASSIVE \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /home/bow
RUN if command -v g++; then BOW_CACHE=/home/bow/.cache/bow python -m bow.runtime; fi
HEALTHCHECK --interval=30m --timeout=90s --start-period=30s CMD ["bow", "doctor"]
ENTRYPOINT ["bow-entrypoint"]
CMD ["train"]
