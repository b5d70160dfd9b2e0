# The target "docs": the reference of the public interface, as HTML in reference/. The target "site": the guide, that
# reference, that of Python and one search, as HTML in site/.
find_program (EBB_GI_DOCGEN gi-docgen)
find_program (EBB_SPHINX sphinx-build)
mark_as_advanced (EBB_GI_DOCGEN EBB_SPHINX)
if (NOT EBB_BUILDS_INTROSPECTION OR NOT EBB_GI_DOCGEN)
  return ()
endif ()

set (site_folder "${CMAKE_CURRENT_SOURCE_DIR}/cmake/site")
configure_file (cmake/site/ebb.toml.in "${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" @ONLY)
add_custom_command (OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/reference/index.html"
  COMMAND "${EBB_GI_DOCGEN}" generate --quiet --no-namespace-dir
    "--config=${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" "--content-dir=${site_folder}"
    "--output-dir=${CMAKE_CURRENT_BINARY_DIR}/reference" "${EBB_GIR}"
  DEPENDS "${EBB_GIR}" "${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" "${site_folder}/overview.md"
  COMMENT "Writing the reference"
  VERBATIM)
add_custom_target (docs DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/reference/index.html")

if (NOT EBB_PYTHON_STUB OR NOT EBB_SPHINX)
  return ()
endif ()
file (GLOB site_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.md" "${CMAKE_CURRENT_SOURCE_DIR}/docs/*.md"
  "${CMAKE_CURRENT_SOURCE_DIR}/docs/porting/*.md" "${site_folder}/*")
add_custom_command (OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/site/index.html"
  COMMAND "${EBB_GI_PYTHON}" "${site_folder}/build.py" "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_BINARY_DIR}"
    "${EBB_GIR}" "${EBB_PYTHON_STUB}" "${PROJECT_VERSION}"
  DEPENDS "${EBB_GIR}" "${EBB_PYTHON_STUB}" "${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" ${site_files}
  COMMENT "Writing the site"
  VERBATIM)
add_custom_target (site DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/site/index.html")
