# libebb-1.0.so, and its static twin for the tests of internals.
set (EBB_FOLDERS tensor nn dist offload wrap train)

set (source_patterns)
foreach (folder IN LISTS EBB_FOLDERS)
  list (APPEND source_patterns "${folder}/*.c")
endforeach ()
file (GLOB_RECURSE EBB_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${source_patterns})
set (EBB_SIMD_SOURCES ${EBB_SOURCES})
list (FILTER EBB_SIMD_SOURCES INCLUDE REGEX "^tensor/cpu/simd/")
list (FILTER EBB_SOURCES EXCLUDE REGEX "^tensor/cpu/simd/")
# Loadable backends, of devices and of process groups, are modules of their own.
set (EBB_SIM_SOURCES ${EBB_SOURCES})
list (FILTER EBB_SIM_SOURCES INCLUDE REGEX "^tensor/(sim/|util/block-heap)")
set (EBB_CUDA_SOURCES ${EBB_SOURCES})
list (FILTER EBB_CUDA_SOURCES INCLUDE REGEX "^tensor/(cuda/|util/block-heap)")
file (GLOB EBB_CUDA_KERNEL_SOURCES CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "tensor/cuda/kernels/*.cu")
set (EBB_NCCL_SOURCES ${EBB_SOURCES})
list (FILTER EBB_NCCL_SOURCES INCLUDE REGEX "^(dist/nccl/|tensor/cuda/current)")
list (FILTER EBB_SOURCES EXCLUDE REGEX "^tensor/(cuda|sim)/")
set (EBB_MPI_SOURCES ${EBB_SOURCES})
list (FILTER EBB_MPI_SOURCES INCLUDE REGEX "^dist/mpi/")
list (FILTER EBB_SOURCES EXCLUDE REGEX "^dist/(mpi|nccl)/")

string (REPLACE ".c" ".h" header_patterns "${source_patterns}")
file (GLOB_RECURSE EBB_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" ${header_patterns})
list (FILTER EBB_PUBLIC_HEADERS EXCLUDE REGEX "-private\\.h$")

set (EBB_GENERATED_DIR "${CMAKE_CURRENT_BINARY_DIR}/generated")
set (EBB_VERSION_HEADER "${EBB_GENERATED_DIR}/tensor/version.h")
configure_file (tensor/version.h.in "${EBB_VERSION_HEADER}" @ONLY)
# <ebb/ebb.h> reads the same in the build tree as after the installation.
file (CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/include/ebb/ebb.h"
  CONTENT "#include \"@CMAKE_CURRENT_SOURCE_DIR@/ebb.h\"\n" @ONLY)

string (TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
set (EBB_HAVE_SIMD_AVX2 0)
set (EBB_HAVE_SIMD_AVX512 0)
set (simd_variants portable)
set (simd_flags_portable)
set (simd_flags_avx2 -mavx2 -mfma -mf16c)
set (simd_flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
set (simd_flags_avx512bf16 ${simd_flags_avx512} -mavx512bf16)
if (processor MATCHES "^(x86_64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set (EBB_HAVE_SIMD_AVX2 1)
  list (APPEND simd_variants avx2)
  # They take minutes to compile with sanitizers, which see nothing in them that they don't see in the others.
  if (NOT EBB_SANITIZE)
    set (EBB_HAVE_SIMD_AVX512 1)
    list (APPEND simd_variants avx512 avx512bf16)
  endif ()
endif ()

function (ebb_configure_objects target)
  target_include_directories (${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${EBB_GENERATED_DIR}")
  target_compile_definitions (${target} PRIVATE EBB_COMPILATION "G_LOG_DOMAIN=\"Ebb\""
    GLIB_VERSION_MIN_REQUIRED=GLIB_VERSION_2_74 GLIB_VERSION_MAX_ALLOWED=GLIB_VERSION_2_74
    EBB_HAVE_SIMD_AVX2=${EBB_HAVE_SIMD_AVX2} EBB_HAVE_SIMD_AVX512=${EBB_HAVE_SIMD_AVX512})
  target_link_libraries (${target} PRIVATE ebb-warnings ebb-codegen PkgConfig::EBB_GLIB ebb-private-dependencies)
endfunction ()

# The page of memory timelines, as a string.
set (page_dir "${CMAKE_CURRENT_SOURCE_DIR}/tensor/profile/page")
set (page_source "${EBB_GENERATED_DIR}/timeline-page-texts.c")
file (GLOB page_files CONFIGURE_DEPENDS "${page_dir}/*.html" "${page_dir}/*.css" "${page_dir}/*.js")
add_custom_command (OUTPUT "${page_source}"
  COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${page_dir}" "-DOUTPUT=${page_source}"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed-page.cmake"
  DEPENDS ${page_files} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed-page.cmake" VERBATIM)

add_library (ebb-objects OBJECT ${EBB_SOURCES} "${page_source}")
ebb_configure_objects (ebb-objects)
set_property (SOURCE tensor/backend/module.c APPEND PROPERTY COMPILE_DEFINITIONS
  "EBB_INSTALLED_BACKENDS_DIR=\"${CMAKE_INSTALL_FULL_LIBDIR}/ebb-${EBB_API_VERSION}/backends\"")
set (EBB_OBJECTS $<TARGET_OBJECTS:ebb-objects>)

# One source, four instruction sets: EBB_SIMD names the variant, which the library picks at run time.
if (EBB_SIMD_SOURCES)
  foreach (variant IN LISTS simd_variants)
    add_library (ebb-simd-${variant} OBJECT ${EBB_SIMD_SOURCES})
    ebb_configure_objects (ebb-simd-${variant})
    target_compile_definitions (ebb-simd-${variant} PRIVATE EBB_SIMD=${variant})
    # Vectors of integers wrap, as the processor's do: the bits of any float go through them.
    target_compile_options (ebb-simd-${variant} PRIVATE
      ${simd_flags_${variant}} -fno-trapping-math -fwrapv)
    list (APPEND EBB_OBJECTS $<TARGET_OBJECTS:ebb-simd-${variant}>)
  endforeach ()
endif ()

# Loadable backends lie beside the library in a folder of their own, here as where they are installed. They are not
# linked to it: the library hands them what they need.
set (EBB_BACKENDS_DIR "${CMAKE_CURRENT_BINARY_DIR}/ebb-${EBB_API_VERSION}/backends")

function (ebb_add_module target)
  add_library (${target} MODULE ${ARGN})
  target_include_directories (${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${EBB_GENERATED_DIR}")
  target_compile_definitions (${target} PRIVATE EBB_COMPILATION "G_LOG_DOMAIN=\"Ebb\""
    GLIB_VERSION_MIN_REQUIRED=GLIB_VERSION_2_74 GLIB_VERSION_MAX_ALLOWED=GLIB_VERSION_2_74)
  target_link_libraries (${target} PRIVATE ebb-warnings ebb-codegen PkgConfig::EBB_GLIB)
  if (NOT EBB_SANITIZE)
    target_link_options (${target} PRIVATE LINKER:-z,defs)
  endif ()
  if (EBB_MATH)
    target_link_libraries (${target} PRIVATE ${EBB_MATH})
  endif ()
  set_target_properties (${target} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY "${EBB_BACKENDS_DIR}")
  install (TARGETS ${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/ebb-${EBB_API_VERSION}/backends")
endfunction ()

set (EBB_MODULES)
ebb_add_module (ebb-backend-sim ${EBB_SIM_SOURCES})
list (APPEND EBB_MODULES ebb-backend-sim)
if (EBB_MPI AND EBB_MPI_SOURCES)
  ebb_add_module (ebb-process-group-mpi ${EBB_MPI_SOURCES})
  target_link_libraries (ebb-process-group-mpi PRIVATE MPI::MPI_C)
  list (APPEND EBB_MODULES ebb-process-group-mpi)
endif ()
if (EBB_NCCL AND EBB_NCCL_SOURCES)
  ebb_add_module (ebb-process-group-nccl ${EBB_NCCL_SOURCES})
  target_link_libraries (ebb-process-group-nccl PRIVATE ebb-nccl)
  list (APPEND EBB_MODULES ebb-process-group-nccl)
endif ()

function (ebb_configure_library target)
  add_dependencies (${target} ebb-objects ${EBB_MODULES})
  target_link_libraries (${target} PUBLIC PkgConfig::EBB_GLIB PRIVATE ebb-private-dependencies ${CMAKE_DL_LIBS})
  set_target_properties (${target} PROPERTIES LINKER_LANGUAGE C)
endfunction ()

add_library (ebb SHARED ${EBB_OBJECTS})
ebb_configure_library (ebb)
target_include_directories (ebb PUBLIC
  "$<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/include>"
  "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>"
  "$<BUILD_INTERFACE:${EBB_GENERATED_DIR}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/ebb-${EBB_API_VERSION}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/ebb-${EBB_API_VERSION}/ebb>")
target_link_options (ebb PRIVATE LINKER:-z,relro,-z,now)
if (NOT EBB_SANITIZE)
  target_link_options (ebb PRIVATE LINKER:-z,defs)
endif ()
set_target_properties (ebb PROPERTIES
  OUTPUT_NAME ebb-${EBB_API_VERSION}
  VERSION ${EBB_SO_VERSION}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH}
  SOVERSION ${EBB_SO_VERSION})
add_library (Ebb::ebb ALIAS ebb)

add_library (ebb-static STATIC EXCLUDE_FROM_ALL ${EBB_OBJECTS})
ebb_configure_library (ebb-static)
target_compile_definitions (ebb-static INTERFACE EBB_COMPILATION
  EBB_HAVE_SIMD_AVX2=${EBB_HAVE_SIMD_AVX2} EBB_HAVE_SIMD_AVX512=${EBB_HAVE_SIMD_AVX512})
target_link_libraries (ebb-static PUBLIC ebb-private-dependencies)
# The files that stand behind a property of modules, and behind saving models that are split over ranks: nothing else
# would pull these out of the archive.
target_link_options (ebb-static INTERFACE
  LINKER:--undefined=ebb_checkpoint_wrapper LINKER:--undefined=ebb_model_save_split)
target_include_directories (ebb-static PUBLIC
  "${CMAKE_CURRENT_BINARY_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}" "${EBB_GENERATED_DIR}")
