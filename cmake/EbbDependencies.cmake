# Every library that Ebb needs, as one interface target.
find_package (PkgConfig REQUIRED)
find_package (OpenMP REQUIRED COMPONENTS C)
pkg_check_modules (EBB_GLIB REQUIRED IMPORTED_TARGET
  glib-2.0>=2.74 gobject-2.0>=2.74 gio-2.0>=2.74 gmodule-2.0>=2.74)
pkg_check_modules (EBB_JSON_GLIB REQUIRED IMPORTED_TARGET json-glib-1.0)
pkg_check_modules (EBB_PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules (EBB_INTROSPECTION_TOOLS QUIET gobject-introspection-1.0)

# By header and library: the CMake package that Debian ships with oneDNN asks for OpenCL's development files, which
# nothing here uses. Another place is given with -Ddnnl_ROOT=FOLDER.
find_path (EBB_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h HINTS "${dnnl_ROOT}" PATH_SUFFIXES include)
find_library (EBB_DNNL_LIBRARY dnnl HINTS "${dnnl_ROOT}" PATH_SUFFIXES "${CMAKE_INSTALL_LIBDIR}" lib)
mark_as_advanced (EBB_DNNL_INCLUDE_DIR EBB_DNNL_LIBRARY)
if (NOT EBB_DNNL_INCLUDE_DIR OR NOT EBB_DNNL_LIBRARY)
  message (FATAL_ERROR "oneDNN was not found: install libdnnl-dev (2.6 or newer), or set -Ddnnl_ROOT to its folder")
endif ()
add_library (ebb-dnnl INTERFACE)
target_include_directories (ebb-dnnl SYSTEM INTERFACE "${EBB_DNNL_INCLUDE_DIR}")
target_link_libraries (ebb-dnnl INTERFACE "${EBB_DNNL_LIBRARY}")

find_library (EBB_MATH m)
mark_as_advanced (EBB_MATH)

# PkgConfig::EBB_GLIB is what the public headers need; this is what only the library's own sources need.
add_library (ebb-private-dependencies INTERFACE)
target_link_libraries (ebb-private-dependencies INTERFACE
  PkgConfig::EBB_PCRE2 ebb-dnnl OpenMP::OpenMP_C)
if (EBB_MATH)
  target_link_libraries (ebb-private-dependencies INTERFACE ${EBB_MATH})
endif ()

# CMake 3.25 sets a property of CUDA::nvToolsExt even where CUDA has no such library, as from 13 on, and then fails.
macro (ebb_find_cuda_toolkit)
  if (NOT TARGET CUDA::nvToolsExt)
    add_library (CUDA::nvToolsExt INTERFACE IMPORTED)
  endif ()
  find_package (CUDAToolkit ${ARGV} QUIET)
endmacro ()

# What the modules of process groups need; a module whose libraries are missing is left out. EBB_MPI and EBB_NCCL say
# whether it is built.
option (EBB_WITH_CUDA "Build the backend for NVIDIA GPUs and the process groups over NCCL if CUDA is found" ON)
option (EBB_WITH_MPI "Build the process groups over MPI if it is found" ON)
option (EBB_WITH_NCCL "Build the process groups over NCCL if CUDA and NCCL are found" ON)
set (EBB_MPI OFF)
set (EBB_NCCL OFF)
# Their compilers and tools would be this machine's.
if (CMAKE_CROSSCOMPILING)
  message (STATUS "cross-building: process groups over MPI and NCCL are left out")
  return ()
endif ()
if (EBB_WITH_MPI)
  find_package (MPI QUIET COMPONENTS C)
  if (MPI_C_FOUND)
    set (EBB_MPI ON)
  else ()
    message (STATUS "MPI was not found (libopenmpi-dev): process groups over MPI are left out")
  endif ()
endif ()
if (EBB_WITH_CUDA AND EBB_WITH_NCCL)
  ebb_find_cuda_toolkit ()
  find_path (EBB_NCCL_INCLUDE_DIR nccl.h HINTS "${nccl_ROOT}" ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library (EBB_NCCL_LIBRARY nccl HINTS "${nccl_ROOT}" ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
  mark_as_advanced (EBB_NCCL_INCLUDE_DIR EBB_NCCL_LIBRARY)
  if (CUDAToolkit_FOUND AND EBB_NCCL_INCLUDE_DIR AND EBB_NCCL_LIBRARY)
    set (EBB_NCCL ON)
    add_library (ebb-nccl INTERFACE)
    target_include_directories (ebb-nccl SYSTEM INTERFACE "${EBB_NCCL_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries (ebb-nccl INTERFACE "${EBB_NCCL_LIBRARY}" CUDA::cudart)
  else ()
    message (STATUS "CUDA or NCCL was not found: process groups over NCCL are left out")
  endif ()
endif ()
