# nvcc, and the two ways to compile a .cu file. Sets BATON_HAVE_NVCC.
set(BATON_HAVE_NVCC OFF)
if(BATON_CUDA)
  find_program(BATON_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(BATON_NVCC)
    set(CMAKE_CUDA_COMPILER ${BATON_NVCC})
    # The virtual architecture lets newer processors translate it for themselves.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
    enable_language(CUDA)
    # CMake 3.25 does not know this switch of nvcc 13, and would fall back to C++17 without a word.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(BATON_HAVE_NVCC ON)
  else()
    message(STATUS "no nvcc: kernels/cuda is compiled for the emulator only")
  endif()
endif()

# Registers and spills that ptxas reports go to the terminal and to OBJECT.ptxas, which cuda_registers_test reads.
function(baton_gpu_library name)
  add_library(${name} STATIC ${ARGN})
  set_target_properties(${name} PROPERTIES
    CUDA_STANDARD 20
    CUDA_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/keep_ptxas_report.sh;${CCACHE_PROGRAM}")
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE
    --expt-relaxed-constexpr -Xptxas=-v -Xcompiler=-Wall,-Wextra
    $<$<BOOL:${BATON_WERROR}>:--Werror=all-warnings>)
  target_link_libraries(${name} PUBLIC CUDA::cudart_static)
endfunction()

set(BATON_EMULATION_DEFINITION "BATON_EMULATE_CUDA=\"tests/emulation/emulated_cuda.h\"")

# A source file has one language in a folder, so the host's compiler gets a file of one line that includes the .cu.
function(baton_emulated_library name)
  set(wrappers)
  foreach(source IN LISTS ARGN)
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE folder)
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/${name}/${source}.cc)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${folder}/${source}\"\n" @ONLY)
    list(APPEND wrappers ${wrapper})
  endforeach()
  add_library(${name} STATIC ${wrappers})
  target_link_libraries(${name} PUBLIC baton_emulation)
  target_compile_definitions(${name} PRIVATE ${BATON_EMULATION_DEFINITION})
  # In every build type: a fiber's step costs several times as much without inlining.
  target_compile_options(${name} PRIVATE -O2 -Wno-unknown-pragmas)
endfunction()
