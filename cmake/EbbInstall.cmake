# The library, its headers, what other build systems read, and what language bindings load.
include (CMakePackageConfigHelpers)

set (include_dir "${CMAKE_INSTALL_INCLUDEDIR}/ebb-${EBB_API_VERSION}")
set (package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Ebb")

install (TARGETS ebb EXPORT EbbTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install (FILES ebb.h DESTINATION "${include_dir}/ebb")
install (FILES "${EBB_VERSION_HEADER}" DESTINATION "${include_dir}/ebb/tensor")
foreach (header IN LISTS EBB_PUBLIC_HEADERS)
  cmake_path (GET header PARENT_PATH folder)
  install (FILES "${header}" DESTINATION "${include_dir}/ebb/${folder}")
endforeach ()

# Both find their prefix from where they lie, so an installed tree may be moved.
set (pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path (RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}" OUTPUT_VARIABLE EBB_PREFIX_FROM_PKGCONFIG)
configure_file (cmake/ebb.pc.in "${CMAKE_CURRENT_BINARY_DIR}/ebb-${EBB_API_VERSION}.pc" @ONLY)
install (FILES "${CMAKE_CURRENT_BINARY_DIR}/ebb-${EBB_API_VERSION}.pc" DESTINATION "${pkgconfig_dir}")

configure_package_config_file (cmake/EbbConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/EbbConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file ("${CMAKE_CURRENT_BINARY_DIR}/EbbConfigVersion.cmake"
  COMPATIBILITY SameMajorVersion)
install (FILES "${CMAKE_CURRENT_BINARY_DIR}/EbbConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/EbbConfigVersion.cmake"
  DESTINATION "${package_dir}")
install (EXPORT EbbTargets NAMESPACE Ebb:: DESTINATION "${package_dir}")

if (EBB_BUILDS_INTROSPECTION)
  install (FILES "${EBB_GIR}" DESTINATION "${CMAKE_INSTALL_DATADIR}/gir-1.0")
  install (FILES "${EBB_TYPELIB}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/girepository-1.0")
  if (EBB_BUILDS_VAPI)
    install (FILES "${EBB_VAPI}" "${EBB_VAPI_DEPS}" DESTINATION "${CMAKE_INSTALL_DATADIR}/vala/vapi")
  endif ()

  # Debian's Python looks in dist-packages, in a folder without the minor version for what the system installs.
  set (python_dir "")
  if (EBB_GI_PYTHON)
    execute_process (COMMAND "${EBB_GI_PYTHON}" -c "import sys; print('python%d.%d' % sys.version_info[:2])"
      OUTPUT_VARIABLE python_version OUTPUT_STRIP_TRAILING_WHITESPACE)
    if (NOT EXISTS /etc/debian_version)
      set (python_dir "lib/${python_version}/site-packages")
    elseif (CMAKE_INSTALL_PREFIX STREQUAL "/usr")
      set (python_dir "lib/python3/dist-packages")
    else ()
      set (python_dir "lib/${python_version}/dist-packages")
    endif ()
  endif ()
  set (EBB_TYPELIB_INSTALL_DIR "${CMAKE_INSTALL_FULL_LIBDIR}/girepository-1.0")
  set (EBB_PYTHON_DIR "${python_dir}" CACHE STRING "Where Python modules are installed; empty for nowhere")
  if (EBB_PYTHON_DIR)
    install (DIRECTORY bindings/python/gi bindings/python/ebb DESTINATION "${EBB_PYTHON_DIR}"
      FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
    # Where `import ebb` finds the typelib, from the package's own folder: an installed tree may be moved.
    cmake_path (ABSOLUTE_PATH EBB_PYTHON_DIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE OUTPUT_VARIABLE package)
    cmake_path (RELATIVE_PATH EBB_TYPELIB_INSTALL_DIR BASE_DIRECTORY "${package}/ebb" OUTPUT_VARIABLE typelibs)
    file (CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/python/_place.py" @ONLY
      CONTENT "\"\"\"Where the typelib is, from this folder.\"\"\"\nTYPELIBS = \"@typelibs@\"\n")
    install (FILES "${CMAKE_CURRENT_BINARY_DIR}/python/_place.py" DESTINATION "${EBB_PYTHON_DIR}/ebb")
    if (EBB_BUILDS_PYTHON)
      install (FILES "${EBB_PYTHON_DOCS}" "${EBB_PYTHON_STUB}" DESTINATION "${EBB_PYTHON_DIR}/ebb")
    endif ()
  endif ()
  if (EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/bindings/js")
    install (DIRECTORY bindings/js/overrides DESTINATION "${CMAKE_INSTALL_DATADIR}/gjs-1.0"
      FILES_MATCHING PATTERN "*.js")
  endif ()
endif ()
