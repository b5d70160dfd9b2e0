# Cross-builds for 64-bit ARM with gcc-aarch64-linux-gnu and the libraries in EBB_SYSROOT, which scripts/test-aarch64
# makes. CTest runs the programs in qemu, in 16 GiB of addresses: qemu has a table of all pages that the heap reserves.
set (CMAKE_SYSTEM_NAME Linux)
set (CMAKE_SYSTEM_PROCESSOR aarch64)
set (CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set (CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

cmake_path (ABSOLUTE_PATH CMAKE_CURRENT_LIST_DIR NORMALIZE)
set (EBB_SYSROOT "${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64-sysroot" CACHE PATH "The system of the target")
cmake_path (ABSOLUTE_PATH EBB_SYSROOT NORMALIZE OUTPUT_VARIABLE CMAKE_SYSROOT)
list (APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EBB_SYSROOT)
set (CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set (CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set (CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set (CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set (ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set (ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")

set (CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -R 16G -L "${CMAKE_SYSROOT}")
