"""Devices and their differences: cores, streams, events, memory, random numbers."""

from bow.devices.base import CapturedGraph as CapturedGraph
from bow.devices.base import Event as Event
from bow.devices.base import Stream as Stream
from bow.devices.base import StreamDevice as StreamDevice
from bow.devices.cores import available_cores as available_cores
from bow.devices.cores import core_sets as core_sets
from bow.devices.cores import num_threads as num_threads
from bow.devices.cores import parse_cores as parse_cores
from bow.devices.cores import physical_first as physical_first
from bow.devices.cores import pin_here as pin_here
from bow.devices.cores import processor as processor
from bow.devices.cores import share_cores as share_cores
from bow.devices.cores import threads_loss as threads_loss
from bow.devices.cuda import CudaDevice as CudaDevice
from bow.devices.cuda import cuda_device as cuda_device
from bow.devices.cuda import prepare_environment as prepare_environment
from bow.devices.kernels import Kernels as Kernels
from bow.devices.kernels import kernels_for as kernels_for
