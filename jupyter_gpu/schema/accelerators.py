"""The accelerators that are known: their resource names, the variables that go with them, the node label of their product.

Each row names where its facts were read; ``unverified`` names those for which nothing of the vendor's own was found. None of it
was tried on a device. An unknown resource name works too: its programs find their devices in ``JUPYTER_GPU_DEVICES``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OWN_VARIABLE = "JUPYTER_GPU_DEVICES"
"""What every program gets, whatever its accelerator."""


@dataclass(frozen=True, slots=True)
class AcceleratorKind:
    """What is known of the accelerators that one vendor's device plugins count."""

    vendor: str
    resources: tuple[str, ...]
    """Names that are in use; ``*`` stands for a part that varies. Others of the same domains are taken for the same kind."""
    visible_variable: str
    """What a program reads to know which devices it may use."""
    plugin_variables: tuple[str, ...]
    """What says inside a container which devices it has: set by the device plugin, or read by the vendor's container toolkit.
    Empty where device files alone say it."""
    product_label: str | None
    """The node label that names the product; None where there is none."""
    source: str
    unverified: tuple[str, ...] = ()
    """Facts above that come from third parties alone."""

    @property
    def domains(self) -> frozenset[str]:
        """What stands before the slash of its resource names."""
        return frozenset(resource.split("/")[0] for resource in self.resources)


KINDS = (
    AcceleratorKind(
        "NVIDIA",
        ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"),
        "CUDA_VISIBLE_DEVICES",
        ("NVIDIA_VISIBLE_DEVICES",),
        "nvidia.com/gpu.product",
        "NVIDIA/k8s-device-plugin: README, docs/gpu-feature-discovery, internal/plugin/server.go",
    ),
    AcceleratorKind(
        "AMD",
        ("amd.com/gpu",),
        "ROCR_VISIBLE_DEVICES",
        ("AMD_VISIBLE_DEVICES",),
        "amd.com/gpu.product-name",
        "ROCm documentation, GPU isolation; ROCm/k8s-device-plugin: cmd/k8s-node-labeller (the plugin itself sets no variable,"
        " AMD's container toolkit reads this one)",
    ),
    AcceleratorKind(
        "Intel GPU",
        ("gpu.intel.com/i915", "gpu.intel.com/xe"),
        "ZE_AFFINITY_MASK",
        ("ZE_AFFINITY_MASK",),
        "gpu.intel.com/product",
        "intel/intel-device-plugins-for-kubernetes: cmd/gpu_plugin (the variable only under WSL),"
        " deployments/nfd/overlays/node-feature-rules",
    ),
    AcceleratorKind(
        "Intel Gaudi (Habana)",
        ("habana.ai/gaudi",),
        "HABANA_VISIBLE_MODULES",
        ("HL_VISIBLE_DEVICES_UUID", "HABANA_VISIBLE_DEVICES"),
        None,
        "HabanaAI/habanalabs-k8s-device-plugin: server.go; ray-project/ray: accelerators/hpu.py",
    ),
    AcceleratorKind(
        "Huawei Ascend",
        (
            "huawei.com/Ascend910",
            "huawei.com/Ascend310",
            "huawei.com/Ascend310P",
            "huawei.com/Ascend910A",
            "huawei.com/Ascend910B*",
            "huawei.com/Ascend910C",
            "huawei.com/npu",
        ),
        "ASCEND_RT_VISIBLE_DEVICES",
        ("ASCEND_VISIBLE_DEVICES",),
        "node.kubernetes.io/npu.chip.name",
        "Ascend/ascend-device-plugin: pkg/common; ray-project/ray: accelerators/npu.py; Project-HAMi/HAMi for 910A to 910C;"
        " the label: users' manifests for newer plugins",
        unverified=("product_label",),
    ),
    AcceleratorKind(
        "Cambricon",
        ("cambricon.com/mlu", "cambricon.com/mlu*", "cambricon.com/vmlu"),
        "MLU_VISIBLE_DEVICES",
        ("CAMBRICON_VISIBLE_DEVICES",),
        "Model",
        "Cambricon/cambricon-k8s-device-plugin: pkg/mlu, pkg/nodeLabel (with --node-label); ray-project/ray: accelerators/mlu.py",
    ),
    AcceleratorKind(
        "Hygon",
        ("hygon.com/dcu", "hygon.com/dcunum"),
        "HIP_VISIBLE_DEVICES",
        ("HYGON_VISIBLE_DEVICES",),
        None,
        "Project-HAMi/HAMi; gpustack/runtime: envs.py",
        unverified=("visible_variable", "plugin_variables"),
    ),
    AcceleratorKind(
        "Iluvatar CoreX",
        ("iluvatar.com/gpu", "iluvatar.ai/*-vgpu"),
        "CUDA_VISIBLE_DEVICES",
        ("IX_VISIBLE_DEVICES", "ILUVATAR_COREX_VISIBLE_DEVICES"),
        None,
        "Deep-Spark/ix-device-plugin: pkg/dpm/plugin.go (the second name: its older releases); gpustack/runtime: envs.py;"
        " Project-HAMi/HAMi",
        unverified=("visible_variable",),
    ),
    AcceleratorKind(
        "MetaX",
        ("metax-tech.com/gpu", "metax-tech.com/sgpu"),
        "CUDA_VISIBLE_DEVICES",
        (),
        "metax-tech.com/gpu.product",
        "ray-project/ray: accelerators/metax_gpu.py; Project-HAMi/HAMi; labels: listings of users' nodes",
        unverified=("product_label", "plugin_variables"),
    ),
    AcceleratorKind(
        "Moore Threads",
        ("mthreads.com/gpu", "mthreads.com/vgpu"),
        "MUSA_VISIBLE_DEVICES",
        ("MTHREADS_VISIBLE_DEVICES",),
        None,
        "MooreThreads/torch_musa: README (its container toolkit's variable); Project-HAMi/HAMi; gpustack/runtime: envs.py",
        unverified=("visible_variable",),
    ),
    AcceleratorKind(
        "Enflame",
        ("enflame.com/gcu", "enflame.com/vgcu"),
        "TOPS_VISIBLE_DEVICES",
        ("ENFLAME_VISIBLE_DEVICES",),
        None,
        "EnflameTechnology/vllm-gcu: vllm_gcu/gcu.py; Project-HAMi/HAMi",
        unverified=("plugin_variables",),
    ),
    AcceleratorKind(
        "Kunlunxin",
        ("kunlunxin.com/xpu", "kunlunxin.com/vxpu"),
        "XPU_VISIBLE_DEVICES",
        ("CXPU_VISIBLE_DEVICES",),
        None,
        "PaddlePaddle/FastDeploy: docs/usage/kunlunxin_xpu_deployment.md; user guide of the XPU Container Toolkit;"
        " Project-HAMi/HAMi",
    ),
    AcceleratorKind(
        "Biren",
        ("birentech.com/gpu", "birentech.com/1-2-gpu", "birentech.com/1-4-gpu"),
        "SUPA_VISIBLE_DEVICES",
        ("BR_PHY_CARDS",),
        None,
        "BirenTechnology/k8s-device-plugin: README, pkg/brgpu/plugin.go; ray-project/ray: accelerators/biren_gpu.py",
    ),
    AcceleratorKind(
        "Google TPU",
        ("google.com/tpu",),
        "TPU_VISIBLE_CHIPS",
        (),
        "cloud.google.com/gke-tpu-accelerator",
        "GKE documentation, TPUs; ray-project/ray: accelerators/tpu.py",
    ),
    AcceleratorKind(
        "AWS Neuron",
        ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
        "NEURON_RT_VISIBLE_CORES",
        ("AWS_NEURON_VISIBLE_DEVICES",),
        "node.kubernetes.io/instance-type",
        "aws-neuron/aws-neuron-sdk: neuron-runtime/guides/configuration-guide.rst, deploy/tutorials/oci-hook.rst, deploy/eks",
    ),
)

_BY_DOMAIN = {domain: kind for kind in KINDS for domain in kind.domains}


def kind_of(resource: str) -> AcceleratorKind | None:
    """Return what is known of an accelerator by its resource name; None for a vendor that is not in the table."""
    return _BY_DOMAIN.get(resource.split("/")[0])


def fits_product(product: str | None, model: str) -> bool:
    """Return whether a device's model is of the product that was asked for: whether it contains its name.

    Capitals don't count, and blanks, dashes and underscores are the same, for node labels write one for the other. None is any.
    """
    return product is None or _plain(product) in _plain(model)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.casefold())
