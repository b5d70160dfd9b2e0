# ebb-backend-cuda.so: NVIDIA GPUs. Where CUDA is missing, one line says so and the rest is built.
set (EBB_CUDA_ARCHITECTURES "" CACHE STRING
  "GPUs to compile kernels for, as 80;90a;100a; empty for all that this CUDA can compile for")
set (EBB_CUDA OFF)
# Sanitizers see nothing of a GPU, and CUDA doesn't work beside AddressSanitizer: they run the emulated one.
if (NOT EBB_WITH_CUDA OR EBB_SANITIZE)
  return ()
endif ()
if (CMAKE_CROSSCOMPILING)
  message (STATUS "cross-building: the backend for NVIDIA GPUs is left out")
  return ()
endif ()

include (CheckLanguage)
set (CMAKE_CUDA_ARCHITECTURES OFF)
if (CMAKE_CUDA_COMPILER MATCHES "NOTFOUND$")
  unset (CMAKE_CUDA_COMPILER CACHE) # it may have been installed since
endif ()
# CMake looks for the compiler in PATH alone, and for the toolkit below /usr/local/cuda as well.
ebb_find_cuda_toolkit ()
if (CUDAToolkit_NVCC_EXECUTABLE AND NOT DEFINED ENV{CUDACXX})
  set (ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
endif ()
check_language (CUDA)
if (CMAKE_CUDA_COMPILER)
  # cuBLASLt and the runtime are those of the compiler's own toolkit.
  ebb_find_cuda_toolkit (12.0)
elseif (CUDAToolkit_NVCC_EXECUTABLE)
  message (STATUS "${CUDAToolkit_NVCC_EXECUTABLE} can't compile: is g++ there? NVIDIA GPUs are left out")
  return ()
endif ()
if (NOT CMAKE_CUDA_COMPILER OR NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cublasLt)
  message (STATUS "CUDA 12 or newer was not found (nvcc, cuBLASLt): the backend for NVIDIA GPUs is left out")
  return ()
endif ()
enable_language (CUDA)
set (EBB_CUDA ON)

# Ampere also as code that newer GPUs compile for themselves; Hopper and Blackwell as what only they run.
set (architectures "${EBB_CUDA_ARCHITECTURES}")
if (architectures STREQUAL "")
  set (architectures 80 90a)
  if (CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list (APPEND architectures 100a)
  endif ()
endif ()
list (TRANSFORM architectures REPLACE "^([0-9]+a)$" "\\1-real")

ebb_add_module (ebb-backend-cuda ${EBB_CUDA_SOURCES})

# Products and sums are fused only where the source asks for it, as on the CPU. cmake/ptxas-log.py keeps what the
# assembler says of registers and spills beside each object, for tests/scripts/cuda_spills.py.
if (EBB_CUDA_KERNEL_SOURCES)
  set (launcher "${CMAKE_CURRENT_SOURCE_DIR}/cmake/ptxas-log.py")
  if (EBB_CCACHE)
    list (APPEND launcher "${EBB_CCACHE}")
  endif ()
  add_library (ebb-cuda-kernels OBJECT ${EBB_CUDA_KERNEL_SOURCES})
  target_include_directories (ebb-cuda-kernels PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${EBB_GENERATED_DIR}")
  target_compile_definitions (ebb-cuda-kernels PRIVATE EBB_COMPILATION)
  target_link_libraries (ebb-cuda-kernels PRIVATE PkgConfig::EBB_GLIB)
  set_target_properties (ebb-cuda-kernels PROPERTIES
    CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_VISIBILITY_PRESET hidden LINKER_LANGUAGE CUDA
    CUDA_COMPILER_LAUNCHER "${launcher}")
  target_compile_options (ebb-cuda-kernels PRIVATE
    --fmad=false -Xptxas=-v
    "-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-fPIC,-ffp-contract=off,-fno-strict-aliasing")
  if (EBB_WERROR)
    target_compile_options (ebb-cuda-kernels PRIVATE --Werror=all-warnings -Xcompiler=-Werror)
  endif ()
  target_sources (ebb-backend-cuda PRIVATE $<TARGET_OBJECTS:ebb-cuda-kernels>)
endif ()

target_include_directories (ebb-backend-cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries (ebb-backend-cuda PRIVATE CUDA::cudart CUDA::cublasLt)
# CUDA seldom lies where the linker looks by itself.
set_target_properties (ebb-backend-cuda PROPERTIES LINKER_LANGUAGE C INSTALL_RPATH_USE_LINK_PATH ON)
