"""Settings of the backends: what configuration becomes, frozen, before a backend sees it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jupyter_gpu.schema.base import Schema, Word

# What a workload may see of the environment of the process that starts it. Everything else stays behind.
PASSED_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "XDG_*",
    "LD_LIBRARY_PATH", "DYLD_*", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_*", "PYENV_*", "CUDA_HOME", "CUDA_PATH", "OMP_NUM_THREADS",
    "IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_PATH", "JPY_SESSION_NAME", "MPLBACKEND", "PYDEVD_*",
)  # fmt: skip


class LocalSettings(Schema):
    """A place on this machine, for this account."""

    backend: Literal["local"] = "local"
    state_folder: Path | None = Field(None, description="<jupyter data folder>/gpu/<machine id> when absent.")
    emulated_gpus: int | None = Field(
        None, ge=0, le=1024, description="Devices that do not exist, to try things; None: real ones."
    )
    emulated_models: tuple[Word, ...] = Field(
        (), description="Their models in turn, to try the choice of a product; 'emulated' when absent."
    )
    passed_variables: tuple[str, ...] = Field(PASSED_VARIABLES, description="Variables (glob patterns) that programs get.")
    poll_s: float = Field(0.05, gt=0, le=10, description="How often the store is looked at for changes.")
    memory_limits: Literal["auto", "scope", "watch", "off"] = Field(
        "auto", description="How programs are held to their memory; auto: by a systemd scope where that can be, else by watching."
    )

    @model_validator(mode="after")
    def _models_have_gpus(self) -> Self:
        if self.emulated_models and not self.emulated_gpus:
            raise ValueError("emulated_models needs emulated_gpus: say how many there are")
        return self


class Reach(StrEnum):
    """How this process reaches the ports of a pod."""

    AUTO = "auto"
    DIRECT = "direct"
    PORT_FORWARD = "port-forward"


class KubernetesSettings(Schema):
    """A namespace of a cluster."""

    backend: Literal["kubernetes"] = "kubernetes"
    kubeconfig: Path | None = Field(None, description="KUBECONFIG or ~/.kube/config when absent; in a pod its service account.")
    context: str | None = Field(None, description="The kubeconfig's current one when absent.")
    namespace: str | None = Field(None, description="The context's when absent.")
    reach: Reach = Field(Reach.AUTO, description="auto: to the pod's address where that answers, else by the API server.")
    request_timeout_s: float = Field(30.0, gt=0, description="Longest one API call may take.")
    client_lease_s: float = Field(15.0, ge=1, description="Seconds after which a client that died counts as gone.")
    autoscaled: bool = Field(False, description="Nodes may be added: a request that no node of now could hold is not refused.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


PlaceSettings = Annotated[LocalSettings | KubernetesSettings, Field(discriminator="backend")]
