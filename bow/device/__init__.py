"""What differs between devices: cores, streams, events, memory, random numbers."""

from bow.device.base import CapturedGraph as CapturedGraph
from bow.device.base import Event as Event
from bow.device.base import Stream as Stream
from bow.device.base import StreamDevice as StreamDevice
from bow.device.cores import available_cores as available_cores
from bow.device.cores import core_sets as core_sets
from bow.device.cores import cpu_quota as cpu_quota
from bow.device.cores import parse_cores as parse_cores
from bow.device.cores import physical_first as physical_first
from bow.device.cores import pin_here as pin_here
from bow.device.cores import processor as processor
from bow.device.cores import share_cores as share_cores
from bow.device.cuda import CudaDevice as CudaDevice
from bow.device.cuda import cuda_device as cuda_device
from bow.device.cuda import prepare_environment as prepare_environment
from bow.device.kernels import Kernels as Kernels
from bow.device.kernels import TorchKernels as TorchKernels
from bow.device.kernels import kernels_for as kernels_for
